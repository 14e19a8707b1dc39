// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package confine

import "errors"

// Main is the launcher, which only Linux has.
func Main([]string) error { return errors.New("policies are confined on Linux only") }
