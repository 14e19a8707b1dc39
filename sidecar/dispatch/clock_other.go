// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package dispatch

// SystemClock is real time with the alarm that every system has: time.Timer.
func SystemClock() Clock { return timerClock{} }
