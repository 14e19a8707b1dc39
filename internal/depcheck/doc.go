// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package depcheck holds the project to its import rules: who may import whom, as ARCHITECTURE.md draws it. A failing depcheck is a
// question about the design: usually the importer should declare the small interface that it needs.
package depcheck
