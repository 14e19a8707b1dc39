// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package tritonjson is JSON as Triton's HTTP endpoint reads and writes it.
//
// Triton parses with RapidJSON and NaN and Infinity allowed, keeps the first of two members of one name, never checks
// UTF-8, and reports errors with its own texts; it writes shortest round-trip doubles that always show a fraction or an
// exponent, 64-bit integers as numbers, and bare NaN and Infinity. None of that is encoding/json, and a tensor of a
// hundred thousand numbers must not become a hundred thousand objects, so the package has a scanner of its own: [Parse]
// checks the text once, [Value] reads it lazily, and the tensor functions turn a "data" array into a tensor's raw bytes
// and back without anything in between.
//
// Observed on Triton 2.51; the texts of errors are that server's.
package tritonjson
