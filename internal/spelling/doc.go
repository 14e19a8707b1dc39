// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package spelling finds the word that a misspelt one was probably meant to be.
package spelling
