// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"io"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Log is what the server of a partition says, or has said last: its last lines, all of the present file where they are fewer than 0, and with follow what comes after, until the Pod or ctx
// ends. The caller closes it. It needs get of pods/log; a conch that may not do that does all else.
func (d *Driver) Log(ctx context.Context, partition string, lines int, follow bool) (io.ReadCloser, error) {
	pod := d.latest(partition)
	if pod == nil {
		return nil, fmt.Errorf("partition %s has no Pod", partition)
	}
	of := &core.PodLogOptions{Container: serverContainer, Follow: follow}
	if lines >= 0 {
		n := int64(lines)
		of.TailLines = &n
	}
	text, err := d.b.Client.CoreV1().Pods(d.b.Namespace).GetLogs(pod.Name, of).Stream(ctx)
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w; docs/kubernetes.md has the role, and kubectl logs %s shows the log to who may read it", err, pod.Name)
	case err != nil:
		return nil, fmt.Errorf("the log of pod %s: %w", pod.Name, err)
	}
	return text, nil
}
