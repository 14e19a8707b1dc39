// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

type list struct{ head, tail *Request }

type lane struct {
	waiting list
	rows    int
}
