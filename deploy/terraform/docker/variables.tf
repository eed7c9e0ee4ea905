variable "name" {
  description = "What the machines are called: name-0, name-1 and so on."
  type        = string
}

variable "machine_type" {
  description = "The type of every machine."
  type        = string
  default     = ""
}

variable "image" {
  description = "The image that machines start from."
  type        = string
  default     = ""
}

variable "subnet" {
  description = "Their network."
  type        = string
}

variable "machines" {
  description = "Every machine, as `evenfall plan deploy` wrote them."
  type = list(object({
    index     = number
    name      = string
    address   = string
    feed_name = string
    feed_role = string
  }))
}

variable "settings_dir" {
  description = "The directory that `evenfall plan deploy` wrote."
  type        = string
}

variable "key_file" {
  description = "The shared key, 64 hexadecimal digits, readable by user 65534."
  type        = string
}

variable "start_feed" {
  description = "Whether the feed is started beside the agents, every machine in its role."
  type        = bool
  default     = false
}

variable "pause_image" {
  description = "An image whose process does nothing and never ends. It owns the network of a machine."
  type        = string
  default     = "registry.k8s.io/pause:3.10"
}
