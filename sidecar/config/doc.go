// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package config turns conch.yaml into a Config. It goes through three steps
// that never mix: Parse decodes strictly (an unknown key is an error, with its
// line and the key that was probably meant), Provision fills in the defaults,
// Validate reports everything that is wrong at once, each problem with its
// path. docs/configuration.md describes every key.
package config
