package procs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	hostsapi "ahprelay/gateway/api/hosts"
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
	body, err := GetBy(ctx, client, address, token)
	if err != nil {
		return answer, err
	}
	return answer, json.Unmarshal(body, &answer)
}

// Online returns an error unless the relay at a base URL reports a host as online.
func Online(ctx context.Context, client *http.Client, relay, host, token string) error {
	info, err := GetJSONBy[hostsapi.Info](ctx, client, relay+"/api/hosts/"+host, token)
	if err == nil && info.State != "online" {
		err = fmt.Errorf("%s is %s at %s: %s", host, info.State, relay, info.Reason)
	}
	return err
}

// GetBy requests an address with an HTTP client, and with a token unless that is "". It
// returns the answer.
func GetBy(ctx context.Context, client *http.Client, address, token string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("HTTP %d: %.200s", response.StatusCode, body)
	}
	return body, err
}
