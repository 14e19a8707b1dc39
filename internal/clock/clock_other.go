// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package clock

// System is real time with the alarm that every system has: time.Timer.
func System() Clock { return timerClock{} }
