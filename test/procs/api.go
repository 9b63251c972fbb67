package procs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Each site has one tenant and one host, with these names.
const (
	Tenant = "default"
	Host   = "laptop"
)

// GetJSON requests an address of a relay's API with a token, and decodes the answer.
func GetJSON[T any](ctx context.Context, address, token string) (answer T, err error) {
	return GetJSONBy[T](ctx, http.DefaultClient, address, token)
}

// GetJSONBy is GetJSON with an HTTP client.
func GetJSONBy[T any](ctx context.Context, client *http.Client, address, token string) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return answer, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return answer, err
	}
	if response.StatusCode != http.StatusOK {
		return answer, fmt.Errorf("HTTP %d: %.200s", response.StatusCode, body)
	}
	return answer, json.Unmarshal(body, &answer)
}
