// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package driver

import "io/fs"

func ownedByUs(fs.FileInfo) bool { return true }
func listensIn(int, int) bool    { return true }

func modelProcesses(int, string, string) map[int]bool { return nil }
