// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package console is the page that shows a running conch in a browser: the files of it, embedded, and how they are served. All that it shows comes
// from the admin API, live state from GET /v1/watch. Package door lets browsers in.
//
// There is no build step: assets are served as they lie here. Below assets/vendor is what comes from npm; vendored.json lists it, and
// scripts/vendor-console.sh renews it.
package console
