// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package conditions says how far what is observed and what is desired are apart,
// for every partition and model, and for the cluster that has the servers: ready, progressing, degraded, since when and why.
// It makes them of what the reconciler publishes and remembers when they turned.
package conditions
