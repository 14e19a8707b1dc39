// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package policies makes the host of policies: which programs they are, and what
// these may use.
package policies

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/policyhost"
	"github.com/conch-serving/conch/sidecar/policyhost/confine"
)

// New makes the host. The built-in policies lie beside program; launcher confines
// policies, unless it is empty.
func New(c *config.Config, program string, launcher []string, evaluator policyhost.Evaluator, h control.Hooks, log *slog.Logger) *policyhost.Host {
	own := c.Policy
	third := map[string]policyhost.Executable{}
	if own.Executable != "" {
		third[own.Name] = policyhost.Executable{Path: own.Executable, SHA256: own.Checksum}
	}
	builtins := policyhost.Beside(program)
	return policyhost.New(policyhost.Options{
		Evaluator: evaluator,
		Builtins:  builtins, BuiltinsSHA256: sumOf(builtins), Policies: third,
		Launcher: launcher, Limits: limits(c), Check: h.Check, OnEvent: h.PolicyEvent,
		Logger: log.With("part", "policyhost"), Budget: own.Deadline.Std(),
	})
}

// sumOf is the SHA-256 of a file as it is now, in hex; empty where it cannot be read,
// which the attempt to run it will report. Built-in policies are those that came with this
// conch: others need a restart.
func sumOf(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return ""
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// limits are what policies may use: they have no business in conch's state, nor
// with its operators' socket.
func limits(c *config.Config) confine.Limits {
	l := confine.Default()
	l.User, l.Hidden = confine.Nobody, []string{c.State}
	if socket, ok := strings.CutPrefix(c.Listen.Admin, "unix://"); ok {
		l.Hidden = append(l.Hidden, socket)
	}
	return l
}
