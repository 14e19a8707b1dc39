// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Revisions lists the repository's revisions, newest first.
func (c *Client) Revisions(ctx context.Context) ([]api.RepositoryRevision, error) {
	return get[[]api.RepositoryRevision](ctx, c, "/v1/repository/revisions")
}

// Import has conch read a model repository into a new revision. It calls progress for each report until the import ends.
func (c *Client) Import(ctx context.Context, r api.ImportRequest, progress func(api.ImportProgress)) (api.RepositoryRevision, error) {
	return long[api.RepositoryRevision](ctx, c, "/v1/repository/import", r, progress)
}

// Rollback makes an earlier revision's models the present ones again, as a new
// revision.
func (c *Client) Rollback(ctx context.Context, r api.RollbackRequest) (api.RepositoryRevision, error) {
	return post[api.RepositoryRevision](ctx, c, http.MethodPost, "/v1/repository/rollback", r)
}

// CompareRevisions returns the differences between two revisions. An empty to is the
// current revision, an empty from the parent of to.
func (c *Client) CompareRevisions(ctx context.Context, from, to string) (api.RepositoryDiff, error) {
	return get[api.RepositoryDiff](ctx, c, "/v1/repository/diff?"+url.Values{"from": {from}, "to": {to}}.Encode())
}

// Collect removes old revisions and content that no other has.
func (c *Client) Collect(ctx context.Context, r api.CollectRequest) (api.Collected, error) {
	return post[api.Collected](ctx, c, http.MethodPost, "/v1/repository/gc", r)
}

// Verify compares the content of every revision with what was imported.
func (c *Client) Verify(ctx context.Context, r api.VerifyRequest) (api.Verified, error) {
	return post[api.Verified](ctx, c, http.MethodPost, "/v1/repository/verify", r)
}
