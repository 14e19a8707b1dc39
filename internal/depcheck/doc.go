// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package depcheck checks the project's import rules: which package may import which, as ARCHITECTURE.md draws it. A failing depcheck is a
// question about the design: usually the importer should declare the small interface that it needs.
package depcheck
