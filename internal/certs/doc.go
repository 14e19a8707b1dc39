// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package certs makes TLS settings of files that may be replaced while they are
// in use, as certificate managers do: every handshake sees the files as they
// were at most a second ago, and connections that exist stay.
//
// Files that cannot be used after a replacement (half written, a key of another
// certificate) are reported and the previous ones stay in force.
package certs
