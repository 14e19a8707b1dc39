// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package attached shows what servers that others run serve in the form that the
// plan way knows: a repository revision without files, and a partition for each
// server with what it has READY. Where conch may write the servers' own
// repositories, it guards what it finds there.
package attached
