// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package wire_test

// slower is how many times as long things may take here.
const slower = 1
