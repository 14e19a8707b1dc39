// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// File is a PEM file and the key of conch.yaml that named it, which is how
// errors call it.
type File struct{ Key, Path string }

// Options of NewServer and NewClient.
type Options struct {
	// Certificate and PrivateKey are this side's own. A server needs both, a
	// client both or none.
	Certificate, PrivateKey File
	// Authorities are the certificates that the other side's must descend from. A
	// server without them asks for no client certificate, a client without them
	// trusts the system's.
	Authorities File
	// Optional lets clients without a certificate in; one that is shown is
	// verified.
	Optional bool
	// MinVersion is the oldest version of TLS, a tls.VersionTLS1x.
	MinVersion uint16
	// ServerName is what a client expects in the server's certificate, in place of
	// the host that it dialled.
	ServerName string
	// Protocols are offered by ALPN.
	Protocols []string

	// Now returns the time; nil means time.Now.
	Now func() time.Time
	// Logger logs replacements and those that failed; nil discards.
	Logger *slog.Logger
}

// recheck is the shortest time between two looks at the files.
const recheck = time.Second

// source is a TLS configuration that follows its files.
type source struct {
	o       Options
	build   func(*loaded) *tls.Config
	current atomic.Pointer[tls.Config]
	checked atomic.Int64 // when the files were last looked at, Unix nanoseconds

	mu    sync.Mutex
	stamp [3]stamp
}

// stamp identifies a state of a file, to detect that it was replaced.
type stamp struct {
	modified time.Time
	size     int64
}

// loaded is what the files hold.
type loaded struct {
	certificates []tls.Certificate
	pool         *x509.CertPool
}

func newSource(o Options, build func(*loaded) *tls.Config) (*source, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &source{o: o, build: build}
	s.stamp = s.stamps()
	l, err := o.load()
	if err != nil {
		return nil, err
	}
	s.current.Store(build(l))
	s.checked.Store(o.Now().UnixNano())
	return s, nil
}

// NewServer reads the files and returns the settings of a server. The error
// names file and key.
func NewServer(o Options) (*tls.Config, error) {
	s, err := newSource(o, func(l *loaded) *tls.Config {
		c := &tls.Config{Certificates: l.certificates, MinVersion: o.MinVersion, NextProtos: o.Protocols, ClientCAs: l.pool, Time: o.Now}
		switch {
		case l.pool != nil && o.Optional:
			c.ClientAuth = tls.VerifyClientCertIfGiven
		case l.pool != nil:
			c.ClientAuth = tls.RequireAndVerifyClientCert
		}
		return c
	})
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: o.MinVersion, NextProtos: o.Protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.get(), nil },
	}, nil
}

// get returns the settings of the files as they are now, or were within the
// last second.
func (s *source) get() *tls.Config {
	now := s.o.Now().UnixNano()
	last := s.checked.Load()
	if now-last < int64(recheck) || !s.checked.CompareAndSwap(last, now) {
		return s.current.Load()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stamps := s.stamps()
	if stamps == s.stamp {
		return s.current.Load()
	}
	l, err := s.o.load()
	if err != nil {
		// Not remembered as seen: it is tried again, and reported again, with the next
		// handshake a second later.
		s.o.Logger.Error("replaced TLS files cannot be used; the previous ones stay in force", "error", err)
		return s.current.Load()
	}
	s.stamp = stamps
	s.current.Store(s.build(l))
	s.o.Logger.Info("TLS files were replaced", s.o.named()...)
	return s.current.Load()
}

func (s *source) stamps() (all [3]stamp) {
	for i, f := range []File{s.o.Certificate, s.o.PrivateKey, s.o.Authorities} {
		if f.Path == "" {
			continue
		}
		if info, err := os.Stat(f.Path); err == nil {
			all[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return all
}

// named lists the files for a log line.
func (o Options) named() []any {
	var words []any
	for _, f := range []File{o.Certificate, o.PrivateKey, o.Authorities} {
		if f.Path != "" {
			words = append(words, f.Key, f.Path)
		}
	}
	return words
}

// load reads the files.
func (o Options) load() (*loaded, error) {
	var l loaded
	if o.Certificate.Path != "" || o.PrivateKey.Path != "" {
		certificate, err := o.Certificate.read()
		if err != nil {
			return nil, err
		}
		key, err := o.PrivateKey.read()
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("%s: %s with %s: %s: %w", o.Certificate.Key, o.Certificate.Path, o.PrivateKey.Key, o.PrivateKey.Path, err)
		}
		l.certificates = []tls.Certificate{pair}
	}
	if o.Authorities.Path != "" {
		pem, err := o.Authorities.read()
		if err != nil {
			return nil, err
		}
		l.pool = x509.NewCertPool()
		if !l.pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: %s holds no certificate in PEM", o.Authorities.Key, o.Authorities.Path)
		}
	}
	return &l, nil
}

func (f File) read() ([]byte, error) {
	data, err := os.ReadFile(f.Path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Key, err)
	}
	return data, nil
}
