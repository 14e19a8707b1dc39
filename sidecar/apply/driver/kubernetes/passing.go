// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Passing reports that an error may be gone when the same is asked again: the API server does not answer, or not yet, or the lease is not held at the moment.
func Passing(err error) bool {
	for _, is := range []func(error) bool{
		apierrors.IsServerTimeout, apierrors.IsTimeout, apierrors.IsTooManyRequests, unanswered,
	} {
		if is(err) {
			return true
		}
	}
	return errors.Is(err, ErrNotLeading) || errors.Is(err, context.DeadlineExceeded)
}

// unanswered reports that nobody answered who knows the cluster's objects. An API server that is overloaded, or behind, has answered: client-go asks it again, later and
// otherwise.
func unanswered(err error) bool {
	nobody := (*url.Error)(nil)
	return apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || errors.As(err, &nobody)
}
