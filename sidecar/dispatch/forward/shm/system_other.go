// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package shm

import (
	"errors"
	"os"
)

func newSlab(string, int64) (*slab, error) {
	return nil, errors.New("shared memory with a server is used on Linux only")
}

func unmap([]byte) {}

func unlink(string) error { return nil }

func openObject(string) (*os.File, error) {
	return nil, errors.New("shared memory objects are opened on Linux only")
}

func lacks(*os.File, uint64) bool { return false }
