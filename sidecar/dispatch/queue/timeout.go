// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// timeout is Triton's own rule: a batch starts when it is full or when its
// oldest request has waited for max_queue_delay (Triton's dynamic_batching;
// Symphony, section 3.4: exec = a + k). It does not use deadlines, so it drops
// nothing unless the model has another drop policy.
type timeout struct{ delay Time }

func timeoutKind() Kind {
	const delay = "max_queue_delay"
	return Kind{
		Description: Description{
			Name:        "timeout",
			Help:        "Triton's dynamic batching: start when the batch is full or its oldest request has waited long enough",
			DefaultDrop: "none",
			Parameters: []Parameter{{
				Name: delay, Default: "0s",
				Help: "how long the oldest request of a batch may wait for others, a duration such as 2ms",
			}},
		},
		New: func(params map[string]string) (Discipline, error) {
			k, err := durationParameter(params, delay)
			if err != nil {
				return nil, err
			}
			return timeout{delay: k}, nil
		},
	}
}

func (timeout) DefaultDrop() string { return "none" }

func (t timeout) Exec(now Time, l *Load) Time {
	if l.Full {
		return now
	}
	return max(now, l.Arrival+t.delay)
}
