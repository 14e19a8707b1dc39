// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package guard denies orders that would make a Triton server touch files or
// memory that are not the caller's. Newer servers deny most of them by
// themselves; an older one, or one that Conch did not start, may not. The HTTP front
// and package aggregate use it. Errors are gRPC status errors.
package guard

import (
	"math"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// LogSetting denies a change of where a server writes its log (CVE-2023-31036 and
// similar faults).
func LogSetting(name string) error {
	if name == "log_file" {
		return status.Error(codes.Unimplemented, "log file location can not be updated through network protocol")
	}
	return nil
}

// TraceSetting denies a change of where a server writes its traces.
func TraceSetting(name string) error {
	if name == "trace_file" {
		return status.Error(codes.Unimplemented, "trace file location can not be updated through network protocol")
	}
	return nil
}

// The shared memory of the python backend begins with one of these: its own
// default, and what Conch's servers and its tools are started with
// (shm-region-prefix-name).
var reserved = [...]string{"triton_python_backend_shm_region", "conch-"}

// Region denies system shared memory under a key that is not the
// plain name of an object, that belongs to a backend (CVE-2025-23319, -23320,
// -23334: a client that registers it reads and writes the backend's memory), or
// with an end that overflows.
func Region(key string, offset, size uint64) error {
	name := strings.TrimLeft(key, "/") // as shm_open does
	if strings.ContainsAny(name, "/\x00") || name == "." || name == ".." {
		return status.Errorf(codes.InvalidArgument, "key '%s' is not the name of a shared memory object: it has a path", key)
	}
	for _, prefix := range reserved {
		if strings.HasPrefix(name, prefix) {
			return status.Errorf(codes.InvalidArgument, "cannot register shared memory region with key '%s': it belongs to a backend", key)
		}
	}
	if offset > math.MaxInt64 || size > math.MaxInt64-offset {
		return status.Errorf(codes.InvalidArgument, "offset %d and byte size %d are outside what a region can have", offset, size)
	}
	return nil
}
