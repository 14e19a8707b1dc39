// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package reaper

import (
	"errors"
	"log/slog"
	"time"
)

// Options say what to run.
type Options struct {
	Program        string
	Arguments      []string
	Settled, Pause time.Duration
	Log            *slog.Logger
}

// Run fails: containers are Linux's.
func Run(Options) (int, error) { return 0, errors.New("conch init is for Linux containers") }
