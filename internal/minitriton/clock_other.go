// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package minitriton

// SystemClock is real time. Timer descriptors are Linux's; elsewhere the runtime's clock has to do, up to a millisecond late.
func SystemClock() Clock { return RuntimeClock() }
