// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance is one suite of Triton's protocol for everything that claims to speak it: a real tritonserver, minitriton, and
// Conch in front of either.
//
// Every expected value is what Triton 2.51 really answers, errors word for word, on the models that WriteModels writes. A target that
// differs is wrong; a test of the suite itself runs it against the real server where there is one.
package conformance
