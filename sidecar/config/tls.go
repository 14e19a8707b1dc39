// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"crypto/tls"
	"net"
	"strings"
)

// TLSVersion is the crypto/tls number of a version as conch.yaml writes it; 0
// if it is none.
func TLSVersion(s string) uint16 {
	switch s {
	case "1.2":
		return tls.VersionTLS12
	case "1.3":
		return tls.VersionTLS13
	}
	return 0
}

func (v *validator) serverTLS(t ServerTLS) {
	const path = "listen.tls"
	v.pair(path, t.Certificate, t.Key)
	if !t.Enabled() {
		for key, set := range map[string]bool{
			".clientCA": t.ClientCA != "", ".minVersion": t.MinVersion != "", ".metrics": t.Metrics,
		} {
			if set {
				v.problem(path+key, "has no meaning without listen.tls.certificate, which turns TLS on")
			}
		}
	}
	if t.ClientCertificates != "" {
		v.oneOf(path+".clientCertificates", t.ClientCertificates, ClientCertificatesRequired, ClientCertificatesOptional)
		if t.ClientCA == "" {
			v.problem(path+".clientCertificates", "wants listen.tls.clientCA, the file of the authorities that issue them")
		}
	}
	v.tlsVersion(path+".minVersion", t.MinVersion)
}

// admin checks the admin address: a unix socket is its own permission, an address
// on TCP needs TLS and a token.
func (v *validator) admin(l Listen) {
	const path = "listen.adminTLS"
	v.pair(path, l.AdminTLS.Certificate, l.AdminTLS.Key)
	v.tlsVersion(path+".minVersion", l.AdminTLS.MinVersion)
	if strings.HasPrefix(l.Admin, "unix://") || l.Admin == Off {
		for key, set := range map[string]bool{path: l.AdminTLS != (AdminTLS{}), "listen.adminToken": l.AdminToken != ""} {
			if set {
				v.problem(key, "has no meaning for listen.admin %s: TLS and a token are for host:port", l.Admin)
			}
		}
		return
	}
	if l.AdminTLS.Certificate == "" {
		v.problem("listen.admin", "%s can be reached by others, and every caller that reaches it decides what serves: set listen.adminTLS.certificate and .key, or make it unix:///path", l.Admin)
	}
	if l.AdminToken == "" {
		v.problem("listen.admin", "%s can be reached by others, and every caller that reaches it decides what serves: name the file of a token with listen.adminToken, or make it unix:///path", l.Admin)
	}
}

// ui checks the console's door: nobody comes in without a token or a certificate, and neither goes over a network in the clear.
func (v *validator) ui(u UI) {
	const path = "listen.ui"
	v.pair(path+".tls", u.TLS.Certificate, u.TLS.Key)
	v.tlsVersion(path+".tls.minVersion", u.TLS.MinVersion)
	if u.TLS.Certificate == "" && (u.TLS.ClientCA != "" || u.TLS.MinVersion != "") {
		v.problem(path+".tls", "has no meaning without listen.ui.tls.certificate, which turns TLS on")
	}
	if u.Address == Off {
		if u.Token != "" || len(u.Hosts) > 0 || u.AllowChanges || u.TLS != (AdminTLS{}) {
			v.problem(path, "has no meaning without listen.ui.address, which opens the door")
		}
		return
	}
	host, _, err := net.SplitHostPort(u.Address)
	if err != nil {
		return // reported with the other addresses
	}
	ip := net.ParseIP(host)
	own := host == "localhost" || ip != nil && ip.IsLoopback()
	if u.Token == "" && u.TLS.ClientCA == "" {
		v.problem(path, "lets nobody in: name the file of a token with listen.ui.token, or the authorities of client certificates with listen.ui.tls.clientCA")
	}
	if !own && u.TLS.Certificate == "" {
		v.problem(path+".address", "%s can be reached by others: set listen.ui.tls.certificate and .key, or make it 127.0.0.1", u.Address)
	}
	if !own && len(u.Hosts) == 0 {
		v.problem(path+".hosts", "is empty: list the names by which browsers reach %s, such as gpu1.example.org; requests by other names are refused", u.Address)
	}
	for _, h := range u.Hosts {
		if h == "" || strings.ContainsAny(h, "/:* ") && net.ParseIP(h) == nil {
			v.problem(path+".hosts", "%q is not a name or address; ports, wildcards and https:// do not belong there", h)
		}
	}
}

func (v *validator) driverTLS(d Driver) {
	const path = "driver.tls"
	if d.TLS != (ClientTLS{}) && d.Kind == DriverEmbedded {
		v.problem(path, "has no meaning for the embedded driver, whose servers are inside conch")
		return
	}
	v.clientTLS(path, d.TLS)
}

func (v *validator) clientTLS(path string, t ClientTLS) {
	v.pair(path, t.Certificate, t.Key)
	v.tlsVersion(path+".minVersion", t.MinVersion)
	if t.MinVersion != "" && !t.Enabled() {
		v.problem(path+".minVersion", "has no meaning alone; %s.ca, certificate or serverName turns TLS on", path)
	}
}

// pair checks that a certificate and its key come together.
func (v *validator) pair(path, certificate, key string) {
	switch {
	case certificate != "" && key == "":
		v.problem(path+".key", "is missing; it is the file of the key of %s.certificate", path)
	case certificate == "" && key != "":
		v.problem(path+".certificate", "is missing; it is the file of the certificate of %s.key", path)
	}
}

func (v *validator) tlsVersion(path, s string) {
	if s != "" {
		v.oneOf(path, s, "1.2", "1.3")
	}
}
