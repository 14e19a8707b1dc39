// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package client is the typed Go client of a running conch's admin API
// (HTTP and JSON, by default on a unix socket). Its types are those of
// sidecar/admin/api.
package client
