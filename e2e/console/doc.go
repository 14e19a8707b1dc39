// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package console tests the console in a real browser, on the programs that users run.
package console
