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
	unanswered := (*url.Error)(nil)
	for _, is := range []func(error) bool{
		apierrors.IsServerTimeout, apierrors.IsTimeout, apierrors.IsTooManyRequests, apierrors.IsInternalError, apierrors.IsServiceUnavailable,
	} {
		if is(err) {
			return true
		}
	}
	return errors.Is(err, ErrNotLeading) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &unanswered)
}
