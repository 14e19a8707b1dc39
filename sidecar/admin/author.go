// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// peerKey is where a connection's other end is kept.
type peerKey struct{}

// WithPeer is the ConnContext of the admin door: it notes which user is at the other
// end of a unix socket, by the kernel's word.
func WithPeer(ctx context.Context, c net.Conn) context.Context {
	socket, isUnix := c.(*net.UnixConn)
	if !isUnix {
		return ctx
	}
	uid, err := peer(socket)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, userName(uid))
}

// By is the context of a request whose user is known by name.
func By(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, peerKey{}, oneLine(name))
}

// ByToken is the context of a request that showed a token: its author is only claimed.
func ByToken(ctx context.Context) context.Context { return context.WithValue(ctx, tokenKey{}, true) }

// userName is the name of a user, or its number where the machine has none for it.
func userName(uid uint32) string {
	text := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(text); err == nil && u.Username != "" {
		return u.Username
	}
	return "uid " + text
}

// byToken says of an order that its author is only claimed.
const byToken = " (by token)"

// tokenKey marks requests that showed the token.
type tokenKey struct{}

// author is the author of an order: on a unix socket the user at its other end, whatever
// the caller claims; with a token the name that the caller claims, marked as a claim.
func author(ctx context.Context, claimed string) string {
	if name, known := ctx.Value(peerKey{}).(string); known {
		return name
	}
	if ctx.Value(tokenKey{}) != nil {
		return strings.TrimSpace(oneLine(claimed) + byToken)
	}
	return claimed
}

// oneLine keeps a claim from looking like more than a name.
func oneLine(claimed string) string {
	name := strings.Join(strings.Fields(claimed), " ")
	return name[:min(len(name), 100)]
}

// Token is a secret in a file that operators have to show. The file is read for every
// request, so that a token can be replaced while conch runs.
type Token struct{ key, path string }

// NewToken reads the file once, to say at once what is wrong with it. Key is where conch.yaml names it.
func NewToken(key, path string) (Token, error) {
	t := Token{key, path}
	_, err := t.read()
	return t, err
}

// shortestToken is the least length of a token, so that it cannot be guessed.
const shortestToken = 16

func (t Token) read() (string, error) {
	info, err := os.Stat(t.path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", t.key, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s: %s can be read by others (mode %04o); chmod 600 it", t.key, t.path, info.Mode().Perm())
	}
	text, err := os.ReadFile(t.path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", t.key, err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < shortestToken {
		return "", fmt.Errorf("%s: the token in %s is shorter than %d characters; openssl rand -hex 32 makes one", t.key, t.path, shortestToken)
	}
	return token, nil
}

// Is reports whether a text is the token.
func (t Token) Is(shown string) (bool, error) {
	want, err := t.read()
	if err != nil {
		return false, err
	}
	// Digests are of one length, so that the time says nothing of the token's.
	a, b := sha256.Sum256([]byte(want)), sha256.Sum256([]byte(shown))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1, nil
}

// Guard lets only requests with the token through.
func (t Token) Guard(next http.Handler, logger *slog.Logger) http.Handler {
	s := &server{log: logger}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		right, err := t.Is(shown)
		if err != nil {
			logger.Error("nobody is let in on the admin address", "error", err)
			s.fail(w, &api.Error{Code: api.CodeUnavailable, Message: "conch cannot read its token and lets nobody in; its log says why"})
			return
		}
		if !bearer || !right {
			w.Header().Set("WWW-Authenticate", "Bearer")
			s.fail(w, &api.Error{Code: api.CodeUnauthenticated, Message: "the admin API wants the token of listen.adminToken; tritonctl reads it from --token-file or CONCH_ADMIN_TOKEN_FILE"})
			return
		}
		next.ServeHTTP(w, r.WithContext(ByToken(r.Context())))
	})
}
