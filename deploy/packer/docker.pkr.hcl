# The container image by Packer instead of deploy/docker/build.sh, from the same binary.
#
#   deploy/docker/build.sh && packer build deploy/packer/docker.pkr.hcl


variable "binary" {
  type    = string
  default = "target/x86_64-unknown-linux-gnu/image/evenfall"
}

source "null" "evenfall" {
  communicator = "none"
}

build {
  sources = ["source.null.evenfall"]

  provisioner "shell-local" {
    inline = [
      "tar -c -C $(dirname ${var.binary}) evenfall | docker import --change 'ENTRYPOINT [\"/evenfall\"]' - evenfall:packer",
    ]
  }
}
