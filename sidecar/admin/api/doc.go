// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package api has the types of conch's admin API: what the server in
// sidecar/admin encodes, sidecar/control fills in, sidecar/admin/client decodes and
// tritonctl prints. A field has one name from the loop to the screen.
package api
