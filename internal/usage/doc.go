// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package usage says what is wrong with a command line, and what to write: cobra's and pflag's own errors are in the words of their
// code, name no flag or command that was meant, and cannot be told from the failure of a command.
package usage
