// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package published turns published measurements of whole models into samples that factors are fitted to and judged by: those under estimator/data, and
// those of Symphony's paper (internal/zoo). It serves estimator/train and the benchmark, and is no part of an estimate.
package published
