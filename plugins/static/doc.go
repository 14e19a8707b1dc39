// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package static is the policy that follows its parameters: models lie where these
// put them, and where the parameters say nothing, every model is on
// every GPU on which it fits, one partition of 100% per GPU. Rates play no part
// in it, so that its plans change only with the repository, the GPUs, the
// operator's constraints and its parameters.
//
// It is the policy that Conch starts with, and the yardstick for the others.
package static
