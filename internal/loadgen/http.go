// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// headerLength says how much of an HTTP body is JSON; the tensors' bytes follow (Triton's binary tensor extension).
const headerLength = "Inference-Header-Content-Length"

// HTTP calls one model over Triton's HTTP protocol with binary tensors.
type HTTP struct {
	payload  payload
	url      string
	template []byte
	client   *http.Client
}

// NewHTTP prepares a caller for this model at this endpoint (host:port), with at most the given number of connections.
func NewHTTP(endpoint, model string, t Tensor, connections int) (*HTTP, error) {
	input, output := t.names()
	type object = map[string]any
	header, err := json.Marshal(object{
		"inputs":  []object{{"name": input, "datatype": "FP32", "shape": []int{1, t.Elements}, "parameters": object{"binary_data_size": 4 * t.Elements}}},
		"outputs": []object{{"name": output, "parameters": object{"binary_data": true}}},
	})
	if err != nil {
		return nil, fmt.Errorf("load: request for model %q: %w", model, err)
	}
	return &HTTP{
		payload:  newPayload(t),
		url:      "http://" + endpoint + "/v2/models/" + model + "/infer",
		template: header,
		client: &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections,
			DisableCompression: true, // or every answer would be compressed and inflated without a need
		}},
	}, nil
}

// Close ends the idle connections.
func (h *HTTP) Close() { h.client.CloseIdleConnections() }

// Call sends one request and checks the answer. The model index must be 0.
func (h *HTTP) Call(ctx context.Context, _ int, sequence uint64) error {
	head := append(make([]byte, 0, len(h.template)+4*varying), h.template...)
	head = h.payload.appendHead(head, sequence)
	body := io.MultiReader(bytes.NewReader(head), bytes.NewReader(h.payload.rest))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, body)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	request.ContentLength = int64(len(head) + len(h.payload.rest))
	request.Header.Set("Content-Type", "application/octet-stream")
	request.Header.Set(headerLength, strconv.Itoa(len(h.template)))
	response, err := h.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer := make([]byte, 0, max(0, response.ContentLength)+bytes.MinRead)
	buffer := bytes.NewBuffer(answer)
	if _, err := io.Copy(buffer, response.Body); err != nil {
		return fmt.Errorf("load: %s: %w", h.url, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("load: %s: %s: %s", h.url, response.Status, bytes.TrimSpace(buffer.Bytes()))
	}
	length, err := strconv.Atoi(response.Header.Get(headerLength))
	if err != nil || length > buffer.Len() {
		return fmt.Errorf("%w: header %s is %q", ErrWrong, headerLength, response.Header.Get(headerLength))
	}
	return h.payload.check(buffer.Bytes()[length:], sequence)
}
