// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e tests conch from outside, as its users run it: the programs of bin/, the process driver and a real tritonserver. `make e2e`
// and `make test` build and install what it needs and say where in CONCH_BIN, CONCH_TRITONSERVER, CONCH_PYTHON and CONCH_GRAPHS.
package e2e
