// An S3 server on plain files: versitygw without its other kinds of storage, which would bring Azure's SDK.
// Usage: versitygw ADDRESS FOLDER, with the credentials in ROOT_ACCESS_KEY and ROOT_SECRET_KEY.
package main

import (
	"context"
	"log"
	"os"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	address, folder := os.Args[1], os.Args[2]
	storage, err := posix.New(folder, meta.XattrMeta{}, posix.PosixOpts{Concurrency: 1000, CopyObjectThreshold: 5 << 30})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(embedgw.RunVersityGW(context.Background(), storage, &embedgw.Config{
		RootUserAccess:    os.Getenv("ROOT_ACCESS_KEY"),
		RootUserSecret:    os.Getenv("ROOT_SECRET_KEY"),
		Ports:             []string{address},
		MaxConnections:    1000,
		MaxRequests:       1000,
		MultipartMaxParts: 10000,
		Quiet:             true,
	}))
}
