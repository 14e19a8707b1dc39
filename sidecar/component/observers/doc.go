// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package observers are listeners of the request path that act on what they see:
// a dead process of a model, and a user who does not know yet what conch can say.
package observers
