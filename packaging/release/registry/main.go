// Command registry is a container registry in memory, for rehearsals of
// packaging/publish.sh. It prints its address, and serves until it is killed.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal("registry: ", err)
	}
	fmt.Println(listener.Addr())
	log.Fatal(http.Serve(listener, registry.New(registry.Logger(log.New(io.Discard, "", 0)))))
}
