// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package router says where every model is served.
package router
