package hostagent

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/contentproxy"
)

// liveRead is how long the host may take to return a canvas's content.
const liveRead = 30 * time.Second

// serveFromHost answers a request with content from the host, read on the client's own
// connection.
func (l *live) serveFromHost(w http.ResponseWriter, r *http.Request, s *canvasStream, seen *canvasView) {
	if seen.conn == nil {
		w.Header().Set("Retry-After", "1")
		w.Header().Set(contentproxy.ForNowHeader, "1")
		refuseLive(w, http.StatusServiceUnavailable, errAway.Error())
		return
	}
	at := contentproxy.Address{Instance: s.open.Canvas.Instance, Path: strings.TrimPrefix(r.URL.EscapedPath(), "/"), Query: r.URL.RawQuery}
	if _, err := contentproxy.ParseAddress(at.String()); err != nil {
		refuseLive(w, http.StatusBadRequest, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), liveRead)
	defer cancel()
	done, err := l.reads.Take(r.Context(), l, s.viewer())
	if err != nil {
		refuseLive(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer done()
	answer, err := seen.conn.read(ctx, s.open.Canvas.Channel, at.String())
	if err != nil {
		refuseLive(w, http.StatusGatewayTimeout, "the host does not answer")
		return
	}
	content, status, err := readContent(answer)
	if err != nil {
		refuseLive(w, status, err.Error())
		return
	}
	w.Header().Set("Content-Type", content.contentType())
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content.data))
}

// canvasContent is an element of a canvasReadResource result's contents.
type canvasContent struct {
	mimeType string
	data     []byte
}

func (c *canvasContent) contentType() string {
	if _, _, err := mime.ParseMediaType(c.mimeType); err != nil {
		return "application/octet-stream"
	}
	return c.mimeType
}

// readContent decodes the host's response. If that fails, it returns the HTTP status and an error.
func readContent(response []byte) (canvasContent, int, error) {
	if failure := ahp.RawOf(response, "error"); !ahp.IsNone(failure) {
		return canvasContent{}, statusOfCode(ahp.IntegerOf(ahp.RawOf(failure, "code"))), errors.New(ahp.TextOf(failure, "message"))
	}
	if list := ahp.ElementsOf(ahp.RawOf(response, "result", "contents")); len(list) > 0 {
		content, mimeType := list[0].Raw, ahp.TextOf(list[0].Raw, "mimeType")
		var text string // a page may have half of a surrogate pair, which ahp.Text refuses
		if raw := ahp.RawOf(content, "text"); !ahp.IsNone(raw) && json.Unmarshal(raw, &text) == nil {
			return canvasContent{mimeType, []byte(text)}, 0, nil
		}
		blob, ok := ahp.Text(ahp.RawOf(content, "blob"))
		if data, err := base64.StdEncoding.DecodeString(blob); ok && err == nil {
			return canvasContent{mimeType, data}, 0, nil
		}
	}
	return canvasContent{}, http.StatusBadGateway, errors.New("the host's response contains no content")
}

// statusOfCode returns the HTTP status for an AHP error code.
func statusOfCode(code int64) int {
	switch code {
	case ahp.CodeInvalidParams:
		return http.StatusBadRequest
	case ahp.CodePermissionDenied, ahp.CodeAuthRequired:
		return http.StatusForbidden
	case ahp.CodeNotFound, ahp.CodeContentNotFound:
		return http.StatusNotFound
	case ahp.CodeRateLimited:
		return http.StatusServiceUnavailable
	case ahp.CodeMethodNotFound:
		return http.StatusNotImplemented
	}
	return http.StatusBadGateway
}
