// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// ErrInUse means that another conch already answers on the socket.
var ErrInUse = errors.New("admin socket is in use by another conch")

// Listen opens the admin address: unix:///path/to/socket (mode 0600: the
// socket is the permission) or a host:port. A socket file without a listener, left by
// a killed process, is replaced.
func Listen(address string) (net.Listener, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "unix" {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("admin address %q: %w", address, err)
		}
		return l, nil
	}
	if u.Path == "" {
		return nil, fmt.Errorf("admin address %q has no path; write unix:///path/to/admin.sock", address)
	}
	if err := os.MkdirAll(filepath.Dir(u.Path), 0o755); err != nil {
		return nil, fmt.Errorf("admin address %q: %w", address, err)
	}
	if err := removeStale(u.Path); err != nil {
		return nil, fmt.Errorf("admin address %q: %w", address, err)
	}
	l, err := net.Listen("unix", u.Path)
	if err != nil {
		return nil, fmt.Errorf("admin address %q: %w", address, err)
	}
	if err := os.Chmod(u.Path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("admin address %q: %w", address, err)
	}
	return l, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is not a socket; move it away or choose another path", path)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return fmt.Errorf("%w: %s", ErrInUse, path)
	}
	return os.Remove(path)
}
