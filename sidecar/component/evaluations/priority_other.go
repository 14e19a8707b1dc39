// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package evaluations

import "syscall"

func lowestPriority() error { return nil }

func ownGroup() *syscall.SysProcAttr { return nil }
