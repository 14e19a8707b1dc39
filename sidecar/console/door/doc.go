// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package door stands between a browser and the admin API. It lets in who has opened a one-time link, shown a token or a certificate, and keeps
// that in a cookie that scripts cannot read. It takes requests only by the names that it is known by, so that a page of another name that resolves
// to its address (DNS rebinding) reaches nothing, and refuses what pages of other origins send. Unless changes are allowed, it marks every request
// as one that may only look; the admin API refuses orders then.
package door
