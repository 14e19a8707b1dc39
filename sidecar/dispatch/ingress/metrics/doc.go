// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics passes the metrics of all Triton processes through as one exposition, together with our own.
//
// Every sample of a partition gets the label `partition`. Samples of one family from several partitions stand together
// under one HELP and TYPE, as Prometheus requires. A partition that does not answer in time is left out and counted.
package metrics
