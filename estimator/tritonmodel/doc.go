// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package tritonmodel reads out of a Triton model's configuration what an estimate needs: which file the server loads, which runtime executes
// it, and the dimensions that the configuration fixes. It is the one part of the estimator that knows config.pbtxt.
package tritonmodel
