// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package estimates keeps what the estimator says of the models of a repository, on every GPU type that there is: l(b, p), requirements, utilisations
// and memory, each with its bound, before a model was ever executed.
//
// A [Book] estimates in the background, one model at a time, and rests between two: neither a start nor the request way waits for it. [Watch] holds
// what is observed against what was estimated.
package estimates
