// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package credentials makes the TLS settings of conch's doors, and of the servers
// and collectors that conch calls, from what conch.yaml says.
package credentials

import (
	"crypto/tls"
	"log/slog"

	"google.golang.org/grpc/credentials"

	"github.com/conch-serving/conch/internal/certs"
	"github.com/conch-serving/conch/sidecar/config"
)

// Server is how clients come in with this protocol, or nil for in the clear.
func Server(t config.ServerTLS, log *slog.Logger, protocol string) (*tls.Config, error) {
	if !t.Enabled() {
		return nil, nil //nolint:nilnil // nil is a setting
	}
	return certs.NewServer(certs.Options{
		Certificate: certs.File{Key: "listen.tls.certificate", Path: t.Certificate}, PrivateKey: certs.File{Key: "listen.tls.key", Path: t.Key},
		Authorities: certs.File{Key: "listen.tls.clientCA", Path: t.ClientCA}, Optional: t.ClientCertificates == config.ClientCertificatesOptional,
		MinVersion: config.TLSVersion(t.MinVersion), Protocols: []string{protocol}, Logger: log,
	})
}

// Admin is how operators come in over TCP by a section of conch.yaml, or nil for in the clear.
func Admin(section string, t config.AdminTLS, log *slog.Logger) (*tls.Config, error) {
	if t.Certificate == "" {
		return nil, nil //nolint:nilnil // nil is a setting
	}
	return certs.NewServer(certs.Options{
		Certificate: certs.File{Key: section + ".certificate", Path: t.Certificate}, PrivateKey: certs.File{Key: section + ".key", Path: t.Key},
		Authorities: certs.File{Key: section + ".clientCA", Path: t.ClientCA},
		MinVersion:  config.TLSVersion(t.MinVersion), Protocols: []string{"http/1.1"}, Logger: log,
	})
}

// Client is how the servers of a section of conch.yaml are reached, or nil for
// in the clear.
func Client(section string, t config.ClientTLS, log *slog.Logger) (credentials.TransportCredentials, error) {
	if !t.Enabled() {
		return nil, nil //nolint:nilnil // nil is a setting
	}
	return certs.NewClient(certs.Options{
		Certificate: certs.File{Key: section + ".certificate", Path: t.Certificate}, PrivateKey: certs.File{Key: section + ".key", Path: t.Key},
		Authorities: certs.File{Key: section + ".ca", Path: t.CA}, ServerName: t.ServerName, MinVersion: config.TLSVersion(t.MinVersion), Logger: log,
	})
}

// Check reads every file of a certificate or key that a configuration names, and returns what is wrong with them, by section of conch.yaml.
func Check(c *config.Config) map[string]error {
	log := slog.New(slog.DiscardHandler)
	found := map[string]error{}
	look := func(section string, err error) {
		if err != nil {
			found[section] = err
		}
	}
	_, err := Server(c.Listen.TLS, log, "")
	look("listen.tls", err)
	_, err = Admin("listen.adminTLS", c.Listen.AdminTLS, log)
	look("listen.adminTLS", err)
	_, err = Admin("listen.ui.tls", c.Listen.UI.TLS, log)
	look("listen.ui.tls", err)
	_, err = Client("driver.tls", c.Driver.TLS, log)
	look("driver.tls", err)
	_, err = Client("tracing.tls", c.Tracing.TLS, log)
	look("tracing.tls", err)
	return found
}
